"""ofuwatch: watches the efficiency of training jobs on GPU fleets."""
