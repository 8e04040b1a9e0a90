"""Code that the services share: the engine, a service's runtime, the pool of drafters, training, adapters."""
