package launch

import (
	"errors"
	"net"
	"os"
	"time"

	"ration/internal/job"
)

// restartTime is how long a client asks again if the policy's service does not run: an upgrade restarts it.
const restartTime = 3 * time.Second

// service is the policy's service, for a client that waits. The client survives a restart of the service.
type service struct {
	again   time.Time // until when the client asks again if the service does not run
	patient bool      // the client gives up after runTimeout, but waits without a bound in the queue
}

// ask sends a request that may wait for its turn, as readInTurn. If the service does not run, or ends meanwhile, ask sends the
// request again for restartTime, and for runTimeout after the service has answered.
func (s *service) ask(line string, until time.Time, tell func(why string)) (answer string, file *os.File, why string, err error) {
	if restarted := time.Now().Add(restartTime); restarted.After(s.again) {
		s.again = restarted
	}
	for {
		if s.patient {
			until = time.Now().Add(runTimeout)
		}
		var c *net.UnixConn
		if c, err = dialPolicy(until); err == nil {
			if _, err = c.Write([]byte(line)); err == nil {
				answer, file, why, err = readInTurn(c, func(why string) {
					if s.patient {
						_ = c.SetDeadline(time.Time{})
					}
					tell(why)
				})
			}
			_ = c.Close()
		}
		if err == nil || why != "" {
			s.again = time.Now().Add(runTimeout)
		}
		if !errors.Is(ServiceError(err), ErrNoService) || time.Now().After(s.again) || !job.Ruled() {
			return answer, file, why, err
		}
		why = ""
		time.Sleep(askFirst)
	}
}
