"""The top floor: running the course, its labs and checks, and its report."""
