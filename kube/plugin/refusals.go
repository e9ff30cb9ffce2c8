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

// Reason is the reason of the events about refused memory.
const Reason = "GPUMemoryRefused"

// eventPeriod is how often the pods of a claim get an event: a program that retries in a loop must
// not flood the API server.
const eventPeriod = time.Minute

// refusals remembers which refusals of each claim were reported. It is safe for concurrent use.
type refusals struct {
	lock    sync.Mutex
	said    map[string]*saidOf // by UID
	started bool               // the first check has found the claims from before the start
}

type saidOf struct {
	refused uint64
	at      time.Time // time of the last event
}

// news returns how many refusals of a claim have not been reported. It returns 0 if the last event
// was too recent, unless last is set. Refusals from before the first check do not count: an earlier
// plugin has reported them, or they are old.
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
	if refused < s.refused { // the job was replaced
		s.refused = refused
	}
	if refused == s.refused || !last && now.Sub(s.at) < eventPeriod {
		return 0
	}
	new := refused - s.refused
	s.refused, s.at = refused, now
	return new
}

// unsay takes back refusals of a claim that could not be reported: a later event has them.
func (r *refusals) unsay(uid string, refused uint64) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if s := r.said[uid]; s != nil {
		s.refused -= min(s.refused, refused)
	}
}

// forget drops claims that do not exist any more, after a check of all that do.
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

// watchRefusals sends events about refusals.
func (p *Plugin) watchRefusals(ctx context.Context) {
	ticker := time.NewTicker(p.EventsPeriod)
	defer ticker.Stop()
	for {
		p.tellRefusals(ctx, time.Now(), false)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// tellRefusals checks all jobs once, and sends events for new refusals; if last is set, also of pods that
// had an event a moment ago.
func (p *Plugin) tellRefusals(ctx context.Context, now time.Time, last bool) {
	records, err := p.Node.Records()
	there := map[string]bool{}
	for _, r := range records {
		there[r.Plan.UID] = true
		refused, text := refusedIn(r.Jobs())
		if n := p.seen.news(r.Plan.UID, refused, now, last); n > 0 && !p.tellOf(ctx, r.Plan, message(n, text), now, false) {
			p.seen.unsay(r.Plan.UID, n)
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for refusals")
		return
	}
	p.seen.forget(there)
}

// lastWithin bounds the attempts to send the last event of a claim.
const lastWithin = 4 * time.Second // twice that is less than the pod's grace

// tellLast is for a claim that is about to be unprepared: it reports the refusals since the last check. A
// program that is refused memory often ends at once, and its pod with it. The event is sent in the background;
// Stop waits for it.
func (p *Plugin) tellLast(uid string) {
	if p.EventsPeriod == 0 {
		return
	}
	r, err := p.Node.Record(uid)
	if err != nil {
		return // the claim is not prepared, or Unprepare reports the error
	}
	now := time.Now()
	refused, text := refusedIn(r.Jobs())
	if n := p.seen.news(uid, refused, now, true); n > 0 {
		p.work.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(p.running), lastWithin)
			defer cancel()
			p.tellOf(ctx, r.Plan, message(n, text), now, true)
		})
	}
}

// tellOf reports whether the pods of a claim have an event.
func (p *Plugin) tellOf(ctx context.Context, c claim.Plan, text string, now time.Time, ended bool) bool {
	pods, err := c.Pods, error(nil)
	if !ended {
		pods, err = p.podsOf(ctx, c)
	}
	if err == nil {
		err = p.tell(ctx, c.Namespace, pods, Reason, text, now)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Telling of refusals", "claim", klog.KRef(c.Namespace, c.Name))
	}
	return err == nil
}

func message(refused uint64, last string) string {
	if refused == 1 {
		return "A request for GPU memory was refused: " + last
	}
	return fmt.Sprintf("%d requests for GPU memory were refused. The last: %s", refused, last)
}

// refusedIn returns the number of refused requests in some jobs, and the sentence of the latest.
func refusedIn(jobs []string) (refused uint64, text string) {
	var latest time.Time
	for _, name := range jobs {
		j, err := machine.ReadJob(name)
		if err != nil {
			continue // it is being created or removed
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

// podsOf returns the pods that use the claim now.
func (p *Plugin) podsOf(ctx context.Context, c claim.Plan) (out []claim.Pod, err error) {
	current, err := p.Client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && string(current.UID) != c.UID:
		return c.Pods, nil // deleted by force: use the pods that it was prepared for
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

// tell creates an event for each pod.
func (p *Plugin) tell(ctx context.Context, namespace string, pods []claim.Pod, reason, text string, now time.Time) error {
	for _, pod := range pods {
		at := metav1.NewTime(now)
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + ".", Namespace: namespace},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod.Name, UID: types.UID(pod.UID)},
			Reason:         reason, Message: short(text), Type: corev1.EventTypeWarning, Count: 1, FirstTimestamp: at, LastTimestamp: at,
			Source:              corev1.EventSource{Component: slices.Driver, Host: p.NodeName},
			ReportingController: slices.Driver, ReportingInstance: p.NodeName,
		}
		if _, err := p.Client.CoreV1().Events(namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// short shortens a text to the length that the API server accepts, without cutting a character.
func short(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}
