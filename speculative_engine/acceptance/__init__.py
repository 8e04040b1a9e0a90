"""Rules of acceptance: which draft tokens a request keeps. `coupled` is the default, and the place to begin."""
