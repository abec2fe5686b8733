"""The subcommands of `ov-hsdag`: each module here is one, which its `COMMAND` describes (`ov_hsdag.cli.command`)."""
