site_configuration = {
    "systems": [
        {
            "name": "cluster",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": scheduler,
                    "scheduler": scheduler,
                    "launcher": "srun",
                    "environs": ["builtin"],
                    "max_jobs": 4,
                    "access": ["--partition=debug"],
                }
                for scheduler in ("slurm", "squeue")
            ],
        }
    ],
    "environments": [{"name": "builtin", "features": []}],
}
