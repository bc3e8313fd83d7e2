"""Search tools elsewhere: asked by a declared mapping, their answers put into a corpus and searched with everything else."""
