"""The live page, for those who would rather look than read."""
