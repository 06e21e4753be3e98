"""The parts of the demo and of `bench recovery`: data, cluster, kills, figures."""
