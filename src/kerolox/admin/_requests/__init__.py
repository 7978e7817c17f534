"""The methods of ``Admin`` by subject; generated from the functions."""
