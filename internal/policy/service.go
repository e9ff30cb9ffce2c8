package policy

import (
	"net"
	"os"
	"sync"
	"time"
)

// serviceAge is how long an answer of ServiceUp is used again: every user can ask for the metrics that have it.
const serviceAge = 5 * time.Second

var service struct {
	sync.Mutex
	up *bool     // guarded by Mutex
	at time.Time // guarded by Mutex; zero before the first question
}

// ServiceUp returns whether the service answers that makes users' jobs (Keep), or nil if no policy is in force.
func ServiceUp() *bool {
	service.Lock()
	defer service.Unlock()
	if now := time.Now(); now.Sub(service.at) > serviceAge {
		service.up, service.at = serviceUp(InForceFile, Socket), now
	}
	return service.up
}

func serviceUp(inForce, socket string) *bool {
	if _, err := os.Lstat(inForce); err != nil {
		return nil
	}
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	up := err == nil
	return &up
}
