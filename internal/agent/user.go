package agent

import "ration/internal/job"

// MakeUser is what to do where there is no user job.AgentUser.
const MakeUser = "systemd-sysusers, or useradd --system --no-create-home --home-dir / --shell /usr/sbin/nologin " + job.AgentUser + " makes it"

// StateFolder is where the agent as that user remembers what it has told. It is not in root's folder of jobs,
// which that user cannot write.
const StateFolder = "/run/ration-agent"
