package plugin

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"ration/kube/claim"
	"ration/kube/slices"
	"ration/machine"
)

// Reason is the reason of the events that tell of refused memory.
const Reason = "GPUMemoryRefused"

// eventPeriod is how often a claim's pods get an event: a program that asks in a loop must not fill the
// API server.
const eventPeriod = time.Minute

// refusals is what has been said of each claim's refusals. It may be used by several goroutines.
type refusals struct {
	lock    sync.Mutex
	said    map[string]*saidOf // by UID
	started bool               // a first look has found the claims that there were before
}

type saidOf struct {
	refused uint64
	at      time.Time // of the last event
}

// news returns how many requests of a claim were refused since that was last said, if it is time to say
// it, which it always is with last. What was refused before the first look has been said by an earlier plugin, or is old.
func (r *refusals) news(uid string, refused uint64, now time.Time, last bool) uint64 {
	r.lock.Lock()
	defer r.lock.Unlock()
	s := r.said[uid]
	if s == nil {
		if r.said == nil {
			r.said = map[string]*saidOf{}
		}
		s = &saidOf{}
		if !r.started {
			s.refused = refused
		}
		r.said[uid] = s
	}
	if refused < s.refused { // another job
		s.refused = refused
	}
	if refused == s.refused || !last && now.Sub(s.at) < eventPeriod {
		return 0
	}
	new := refused - s.refused
	s.refused, s.at = refused, now
	return new
}

// forget drops the claims that are not there any more, after a look at all that are.
func (r *refusals) forget(there map[string]bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.started = true
	for uid := range r.said {
		if !there[uid] {
			delete(r.said, uid)
		}
	}
}

func (p *Plugin) watchRefusals(ctx context.Context) {
	ticker := time.NewTicker(p.EventsPeriod)
	defer ticker.Stop()
	for {
		p.tellRefusals(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// tellRefusals looks at all jobs once, and makes events of what is new.
func (p *Plugin) tellRefusals(ctx context.Context, now time.Time) {
	records, err := p.Node.Records()
	there := map[string]bool{}
	for _, r := range records {
		there[r.Plan.UID] = true
		refused, text := refusedIn(r.Jobs())
		if n := p.seen.news(r.Plan.UID, refused, now, false); n > 0 {
			p.tellOf(ctx, r.Plan, message(n, text), now, false)
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for refusals")
		return
	}
	p.seen.forget(there)
}

// lastWithin bounds how long it is tried to tell of a claim that has ended.
const lastWithin = 10 * time.Second

// tellLast tells of what was refused since the last look at a claim that is about to be unprepared: a program that is refused its memory at once often ends
// at once, and its pod with it. The API server is asked in the background.
func (p *Plugin) tellLast(uid string) {
	if p.EventsPeriod == 0 {
		return
	}
	r, err := p.Node.Record(uid)
	if err != nil {
		return // it is not prepared, or that is said where it is unprepared
	}
	now := time.Now()
	refused, text := refusedIn(r.Jobs())
	if n := p.seen.news(uid, refused, now, true); n > 0 {
		go func() {
			ctx, cancel := context.WithTimeout(p.running, lastWithin)
			defer cancel()
			p.tellOf(ctx, r.Plan, message(n, text), now, true)
		}()
	}
}

func (p *Plugin) tellOf(ctx context.Context, c claim.Plan, text string, now time.Time, ended bool) {
	pods, err := c.Pods, error(nil)
	if !ended {
		pods, err = p.podsOf(ctx, c)
	}
	if err == nil {
		err = p.tell(ctx, c.Namespace, pods, text, now)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Telling of refusals", "claim", klog.KRef(c.Namespace, c.Name))
	}
}

func message(refused uint64, last string) string {
	if refused == 1 {
		return "A request for GPU memory was refused: " + last
	}
	return fmt.Sprintf("%d requests for GPU memory were refused. The last: %s", refused, last)
}

// refusedIn returns how many requests were refused in jobs, and the last of them.
func refusedIn(jobs []string) (refused uint64, text string) {
	var latest time.Time
	for _, name := range jobs {
		j, err := machine.ReadJob(name)
		if err != nil {
			continue // it is being made or removed
		}
		refused += j.Refused()
		if len(j.Refusals) > 0 && !j.Refusals[0].Time.Before(latest) {
			latest, text = j.Refusals[0].Time, j.Refusals[0].Sentence(j.Processes)
		}
	}
	return refused, text
}

// maxMessage is the longest message of an event.
const maxMessage = 1024

// podsOf returns the pods that have the claim at this moment.
func (p *Plugin) podsOf(ctx context.Context, c claim.Plan) (out []claim.Pod, err error) {
	current, err := p.Client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && string(current.UID) != c.UID:
		return c.Pods, nil // deleted by force: those that it was prepared for
	case err != nil:
		return nil, err
	}
	for _, pod := range current.Status.ReservedFor {
		if pod.APIGroup == "" && pod.Resource == "pods" {
			out = append(out, claim.Pod{Name: pod.Name, UID: string(pod.UID)})
		}
	}
	return out, nil
}

// tell makes an event for each pod.
func (p *Plugin) tell(ctx context.Context, namespace string, pods []claim.Pod, text string, now time.Time) error {
	for _, pod := range pods {
		at := metav1.NewTime(now)
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + ".", Namespace: namespace},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod.Name, UID: types.UID(pod.UID)},
			Reason:         Reason, Message: short(text), Type: corev1.EventTypeWarning, Count: 1, FirstTimestamp: at, LastTimestamp: at,
			Source:              corev1.EventSource{Component: slices.Driver, Host: p.NodeName},
			ReportingController: slices.Driver, ReportingInstance: p.NodeName,
		}
		if _, err := p.Client.CoreV1().Events(namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// short returns a text that an API server takes: one that is not too long, and whose characters are whole.
func short(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}
