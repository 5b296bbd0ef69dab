"""Events over HTTP: CloudEvents as gateways and SDKs post them, validated, then acknowledged by Kafka."""
