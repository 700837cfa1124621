"""How a job progresses with so many workers at some place, by the tables of its trace."""
