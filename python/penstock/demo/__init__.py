"""Made-up data, and the demonstration that trains from it. Nothing is downloaded."""
