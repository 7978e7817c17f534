"""The columns: types, and the way from raw records to Arrow."""
