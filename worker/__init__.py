"""What runs on a node: the agent, the training session and the state it carries."""
