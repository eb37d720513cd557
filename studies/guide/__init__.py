"""What PARALLELISM_GUIDE.md says: the planner's answers in guide.json, and the tables and pictures made of them."""
