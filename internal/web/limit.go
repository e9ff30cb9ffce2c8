package web

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"ration/internal/humanfmt"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/internal/termtext"
	"ration/machine"
)

// answer is the answer to a form that was sent by the script.
type answer struct {
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// serveLimit changes a job's limit like ration limit, with the rights of the process that serves
// the page.
func (s *server) serveLimit(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		refuse(w, "the form could not be read")
		return
	}
	if subtle.ConstantTimeCompare([]byte(r.PostForm.Get("form")), []byte(s.opts.form)) != 1 {
		refuse(w, "the form is not of this page (load it again)")
		return
	}
	text, err := s.setLimit(r)
	if err != nil {
		text = err.Error()
	}
	text = termtext.Printable(strings.Join(strings.Fields(text), " "))
	if r.Header.Get("Accept") != "application/json" { // sent without the script
		s.writePage(w, r, text, err != nil)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
	}
	_ = json.NewEncoder(w).Encode(answer{err == nil, text})
}

var (
	errGone      = errors.New("the job is not there any more (load the page again)")
	errMayNot    = errors.New("you may not change the limits of this job")
	errNoChange  = errors.New("nothing to change (fill in one of the fields)")
	errNoSuchDev = errors.New("not a device of the job")
)

func (s *server) setLimit(r *http.Request) (string, error) {
	s.hub.refresh()
	j, there := s.hub.findJob(r.PostForm.Get("job"))
	if !there {
		return "", errGone
	}
	if s.opts.SetLimit == nil || !s.hub.mayChange(&j) {
		return "", errMayNot
	}
	change, err := readChange(r.PostForm.Get)
	if err != nil {
		return "", err
	}
	return s.opts.SetLimit(j, change)
}

// findJob returns the shown job with that element id.
func (h *hub) findJob(id string) (machine.Job, bool) {
	h.draw.Lock()
	defer h.draw.Unlock()
	d, there := h.jobs[id]
	return d.job, there
}

// limitRow has the limits of a device as the form shows them.
type limitRow struct{ Device, Memory, Used, Share, Max string }

// limitDevice is a device whose limit can be changed.
type limitDevice struct {
	Number       int // the job's own number
	Label, Limit string
}

// addLimits adds the limits of today, and the devices for which they can be changed.
func (h *hub) addLimits(v *jobView, m *machine.Machine, j *machine.Job) {
	if j.State == machine.Ended || j.Error != "" {
		return
	}
	switch {
	case v.MayChange:
	case h.opts.MayChange == nil:
		v.MayNot = "This page changes nothing: it was started with --read-only."
	case h.opts.Viewer != "":
		v.MayNot = "Only root can change these limits."
	default:
		v.MayNot = "You may not change the limits of this job."
	}
	for _, d := range node.DeviceRanges(j.Devices) { // also those that a change can open
		row := limitRow{deviceLabel(m, &d), "none", humanfmt.Bytes(d.Used), "none", "none"}
		if d.Limited {
			row.Memory = humanfmt.Bytes(d.Limit)
		}
		if d.Compute != nil && d.Compute.Share > 0 {
			row.Share = fmt.Sprintf("%d %%", d.Compute.Share)
		}
		if d.Compute != nil && d.Compute.Max > 0 {
			row.Max = fmt.Sprintf("%d %%", d.Compute.Max)
		}
		for n := d.Device.Device; n <= d.Last; n++ {
			one := node.DeviceRange{Device: d.Device, Last: n}
			if d.Last > d.Device.Device { // a range has the UUID of its first device only
				one.Device.Device, one.UUID = n, ""
				if at := slices.IndexFunc(j.Devices, func(of machine.Device) bool { return of.Device == n }); at >= 0 {
					one.Device = j.Devices[at]
				}
			}
			v.Devices = append(v.Devices, limitDevice{n, deviceLabel(m, &one), row.Memory})
		}
		if !node.IsOpen(j, d.Device.Device) {
			continue
		}
		if v.Limits = append(v.Limits, row); len(v.Limits) == 1 {
			v.Now = row
		}
		v.Now = limitRow{Memory: same(v.Now.Memory, row.Memory), Share: same(v.Now.Share, row.Share), Max: same(v.Now.Max, row.Max)}
	}
}

// same returns the text that two devices have in common, or a word for different texts.
func same(a, b string) string {
	if a == b {
		return a
	}
	return "differs"
}

// readChange reads a change of limits from the fields of a form.
func readChange(field func(string) string) (l limit.Limits, err error) {
	if text := strings.TrimSpace(field("memory")); text != "" {
		l.Memory, err = limit.ParseMemorySet("memory", text)
	}
	if text := strings.TrimSpace(field("share")); text != "" && err == nil {
		l.Compute, err = limit.ParseComputeSet("share", text)
	}
	if text := strings.TrimSpace(field("cap")); text != "" && err == nil {
		l.ComputeMax, err = limit.ParseComputeSet("cap", text)
	}
	if err == nil && !l.IsSet() {
		err = errNoChange
	}
	device := field("device")
	if err != nil || device == "" {
		return l, err
	}
	n, err := strconv.Atoi(device)
	if err != nil || n < 0 || n >= limit.MaxDevices {
		return l, fmt.Errorf("%q: %w", device, errNoSuchDev)
	}
	return l.On(n)
}
