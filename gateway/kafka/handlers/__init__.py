"""One module per Kafka API; `gateway.kafka.api` finds them by listing this package."""
