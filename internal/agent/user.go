package agent

import "ration/internal/job"

// MakeUser is the command that makes the user job.AgentUser.
const MakeUser = "systemd-sysusers, or useradd --system --no-create-home --home-dir / --shell /usr/sbin/nologin " + job.AgentUser + " makes it"

// StateFolder holds the journal if the agent runs as that user, which cannot write root's folder of
// jobs.
const StateFolder = "/run/ration-agent"

// UsageFile has the accounts of usage of root's agent.
const UsageFile = "/var/lib/ration-agent/" + job.UsageFile
