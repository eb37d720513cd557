"""What PARALLELISM_GUIDE.md says: the planner asked, its answers kept in guide.json, the holes that they fill."""
