"""The renter's comparison: is FP8 worth it on this machine, and is the loss the same? Arms, plans, budgets, verdicts,
and the tables, pictures and pages that show them. Run folders are labkit.record's, training labkit.train's."""
