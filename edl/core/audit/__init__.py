"""The account of every sample, from the lines that workers wrote."""
