"""The models that the gateway serves: their names, and the verifiers behind each."""
