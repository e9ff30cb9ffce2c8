package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"ration/internal/job"
	"ration/internal/safepath"
	"ration/kube/claim"
)

// Sweep removes what is left of claims that are gone: the kubelet was told to forget them, or died
// before it had them unprepared. gone is asked for each claim on this node, without the lock, as the
// answer may take long; a claim that was prepared since then is kept. It is also kept where gone has an
// error, and where a process lives in a job of it: then the answer was wrong, or the process outlived
// its pod. Sweep also removes files that were being written when their writer died.
func (n *Node) Sweep(gone func(claim.Plan) (bool, error)) (removed []string, err error) {
	all, err := n.look()
	for uid, seen := range all {
		is, e := gone(seen.plan)
		if e == nil && is {
			is, e = n.removeUnchanged(uid, seen)
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("claim %s: %w", uid, e))
		} else if is {
			removed = append(removed, uid)
		}
	}
	return removed, err
}

// seen is a claim of which something is on this node. One whose record is missing or cannot be
// understood has its name from its job, or none.
type seen struct {
	plan   claim.Plan
	record string // as it is on disk; empty where there is none
}

// look returns all claims of which something is on this node, by UID.
func (n *Node) look() (map[string]seen, error) {
	unlock, err := n.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, folder := range []string{n.State, n.CDI} {
		err = errors.Join(err, removeTemporary(folder))
	}
	known, e := n.known()
	out := map[string]seen{}
	for uid, p := range known {
		text, e := n.recordText(uid)
		err, out[uid] = errors.Join(err, e), seen{p, text}
	}
	return out, errors.Join(err, e)
}

// removeUnchanged removes what is left of a claim, unless it was prepared since it was seen.
func (n *Node) removeUnchanged(uid string, s seen) (removed bool, err error) {
	unlock, err := n.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	if text, err := n.recordText(uid); err != nil || text != s.record {
		return false, err
	}
	return true, n.remove(&Record{Plan: claim.Plan{UID: uid}})
}

func (n *Node) recordText(uid string) (string, error) {
	text, err := os.ReadFile(n.recordFile(uid))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// known is look without the lock, and without the records as they are.
func (n *Node) known() (map[string]claim.Plan, error) {
	out := map[string]claim.Plan{}
	uids, err := n.recorded()
	for _, uid := range uids {
		out[uid] = claim.Plan{UID: uid}
		if r, e := n.read(uid); e == nil {
			out[uid] = r.Plan
		}
	}
	specs, e := filepath.Glob(filepath.Join(n.CDI, specPrefix+"*"+specSuffix))
	err = errors.Join(err, e)
	for _, file := range specs {
		uid := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), specPrefix), specSuffix)
		if _, ok := out[uid]; !ok && claim.CheckUID(uid) == nil {
			out[uid] = claim.Plan{UID: uid}
		}
	}
	folders, e := os.ReadDir(job.Folder())
	if !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	for _, f := range folders {
		uid, ok := claimOf(f.Name())
		if !ok || out[uid].Name != "" {
			continue
		}
		out[uid] = claim.Plan{UID: uid}
		if k := job.ReadKubernetes(f.Name()); k != nil {
			out[uid] = claim.Plan{UID: uid, Namespace: k.Namespace, Name: k.Claim}
		}
	}
	return out, err
}

func removeTemporary(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, safepath.TempPrefix+"*"))
	for _, f := range files {
		err = errors.Join(err, removeFile(f))
	}
	return err
}
