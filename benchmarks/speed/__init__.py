"""Speed: what one part costs or gains on one machine."""
