package plugin

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// refusals is what has been said of each claim's refusals.
type refusals struct {
	said map[string]*saidOf // by UID
}

type saidOf struct {
	refused uint64
	at      time.Time // of the last event
}

// news returns how many requests of a claim were refused since that was last said, if it is time to say
// it. What was refused before the first look has been said by an earlier plugin, or is old.
func (r *refusals) news(uid string, refused uint64, now time.Time) uint64 {
	s := r.said[uid]
	if s == nil {
		if r.said == nil {
			r.said = map[string]*saidOf{}
		}
		r.said[uid] = &saidOf{refused: refused}
		return 0
	}
	if refused < s.refused { // another job
		s.refused = refused
	}
	if refused == s.refused || now.Sub(s.at) < eventPeriod {
		return 0
	}
	new := refused - s.refused
	s.refused, s.at = refused, now
	return new
}

// forget drops the claims that are not there any more.
func (r *refusals) forget(there map[string]bool) {
	for uid := range r.said {
		if !there[uid] {
			delete(r.said, uid)
		}
	}
}

func (p *Plugin) watchRefusals(ctx context.Context) {
	var seen refusals
	for ticker := time.NewTicker(p.EventsPeriod); ; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case now := <-ticker.C:
			p.tellRefusals(ctx, &seen, now)
		}
	}
}

// tellRefusals looks at all jobs once, and makes events of what is new.
func (p *Plugin) tellRefusals(ctx context.Context, seen *refusals, now time.Time) {
	records, err := p.Node.Records()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for refusals")
	}
	there := map[string]bool{}
	for _, r := range records {
		there[r.Plan.UID] = true
		refused, text := refusedIn(r.Jobs())
		if n := seen.news(r.Plan.UID, refused, now); n > 0 {
			if err := p.tell(ctx, r.Plan, message(n, text), now); err != nil {
				klog.FromContext(ctx).Error(err, "Telling of refusals", "claim", klog.KRef(r.Plan.Namespace, r.Plan.Name))
			}
		}
	}
	seen.forget(there)
}

func message(refused uint64, last string) string {
	if refused == 1 {
		return "A request for GPU memory was refused: " + last
	}
	return fmt.Sprintf("%d requests for GPU memory were refused. The last: %s", refused, last)
}

// refusedIn returns how many requests were refused in jobs, and the last of them.
func refusedIn(jobs []string) (refused uint64, text string) {
	latest := int64(0)
	for _, name := range jobs {
		j, err := machine.ReadJob(name)
		if err != nil {
			continue // it is being made or removed
		}
		for _, d := range j.Devices {
			refused += d.Refused
		}
		if len(j.Refusals) > 0 && j.Refusals[0].Time >= latest {
			latest, text = j.Refusals[0].Time, j.Refusals[0].Sentence(j.Processes)
		}
	}
	return refused, text
}

// maxMessage is the longest message of an event.
const maxMessage = 1024

// tell makes an event for each pod that has the claim at this moment.
func (p *Plugin) tell(ctx context.Context, c claim.Plan, text string, now time.Time) error {
	current, err := p.Client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if string(current.UID) != c.UID {
		return nil
	}
	text = text[:min(len(text), maxMessage)]
	for _, pod := range current.Status.ReservedFor {
		if pod.APIGroup != "" || pod.Resource != "pods" {
			continue
		}
		at := metav1.NewTime(now)
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + ".", Namespace: c.Namespace},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: c.Namespace, Name: pod.Name, UID: pod.UID},
			Reason:         Reason, Message: text, Type: corev1.EventTypeWarning, Count: 1, FirstTimestamp: at, LastTimestamp: at,
			Source:              corev1.EventSource{Component: slices.Driver, Host: p.NodeName},
			ReportingController: slices.Driver, ReportingInstance: p.NodeName,
		}
		if _, err := p.Client.CoreV1().Events(c.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}
