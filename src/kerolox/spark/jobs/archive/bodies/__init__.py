"""Bodies decoded by a schema: JSON in Spark itself, Avro and Protobuf in its Python workers."""
