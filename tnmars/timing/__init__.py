"""Timing: one clock, tuning by measured time, and calibration of the cost model."""
