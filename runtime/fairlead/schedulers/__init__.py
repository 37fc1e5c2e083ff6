"""Job scripts: what ``fairlead script`` writes for each scheduler."""
