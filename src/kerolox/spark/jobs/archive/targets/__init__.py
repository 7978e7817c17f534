"""Where an archive goes: Parquet, Delta, Iceberg."""
