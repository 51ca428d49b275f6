"""Make environments: the project's own and those of other engine builds."""
