"""How often the alarms of labkit.watch ring rightly: small trainings, and the faults that are put into them."""
