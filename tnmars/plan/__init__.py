"""Plans: a graph and a cost model become contraction steps in a memory layout."""
