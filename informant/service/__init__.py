"""The informant at work: agents that are called, sizes that are agreed on, the guest that is looked at."""
