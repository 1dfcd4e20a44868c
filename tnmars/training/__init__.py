"""Training: the penalty of the gates, parameter groups and schedules."""
