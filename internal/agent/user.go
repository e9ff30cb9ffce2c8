package agent

import "ration/internal/job"

// MakeUser is what to do if there is no user job.AgentUser.
const MakeUser = "systemd-sysusers, or useradd --system --no-create-home --home-dir / --shell /usr/sbin/nologin " + job.AgentUser + " makes it"

// StateFolder is where the agent has its journal as that user, which cannot write root's folder of jobs.
const StateFolder = "/run/ration-agent"
