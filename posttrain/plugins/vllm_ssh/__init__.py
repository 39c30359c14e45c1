"""vLLM servers on other hosts: start them over ssh, send weights, and end them."""
