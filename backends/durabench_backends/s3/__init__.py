"""S3: one client adapter over three servers of ours and anybody's bucket.

`client` speaks S3; `promises` says what each vendor's documentation promises; `swift`, `seaweedfs` and `moto` describe
servers of ours, each with the program that the harness starts for it (`swift_daemon`, `seaweedfs_daemon`,
`moto_daemon`); `anywhere` is somebody's bucket, by URL. `model` is imported by whoever wants its cost paid in advance.
"""
