package job

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"ration/internal/connlimit"
	"ration/internal/safepath"
)

// serviceAge is how long an answer of PolicyUp is used again: every user can ask for the metrics that have it.
const serviceAge = 5 * time.Second

var service struct {
	sync.Mutex
	up *bool     // guarded by Mutex
	at time.Time // guarded by Mutex; zero before the first question
}

// PolicyUp returns whether the service answers that makes users' jobs (ration policy keep), or nil if no policy is in force, or if
// this process cannot see it: programs of ration run --keep have another folder where its socket is.
func PolicyUp() *bool {
	if safepath.Exists(WellKnown) {
		return nil
	}
	service.Lock()
	defer service.Unlock()
	if now := time.Now(); now.Sub(service.at) > serviceAge {
		service.up, service.at = policyUp(InForceFile, filepath.Join(RootFolder, PolicySocket)), now
	}
	return service.up
}

func policyUp(inForce, socket string) *bool {
	if _, err := os.Lstat(inForce); err != nil {
		return nil
	}
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	up := err == nil || connlimit.Full(err)
	return &up
}
