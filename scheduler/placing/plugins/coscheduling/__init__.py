"""`Coscheduling`: pods that are of use only together get their nodes together, or none does."""
