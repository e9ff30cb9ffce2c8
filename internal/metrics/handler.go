package metrics

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// maxScrapes bounds the scrapes that are made at the same time.
const maxScrapes = 4

// Handler serves metrics to Prometheus. A scrape takes no longer than the given time.
func Handler(timeout time.Duration, collectors ...Collector) http.Handler {
	running := make(chan struct{}, maxScrapes)
	scrape := func(w http.ResponseWriter, r *http.Request) {
		select {
		case running <- struct{}{}:
			defer func() { <-running }()
		default:
			http.Error(w, fmt.Sprintf("%d scrapes are being made (try again later)", maxScrapes), http.StatusServiceUnavailable)
			return
		}
		var text bytes.Buffer
		if err := WriteText(&text, collectors...); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Vary", "Accept-Encoding")
		if !takesGzip(r) {
			_, _ = w.Write(text.Bytes()) // an error: the client has gone
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		_, _ = packed.Write(text.Bytes())
		_ = packed.Close()
	}
	return http.TimeoutHandler(http.HandlerFunc(scrape), timeout, "the scrape took too long\n")
}

// takesGzip reports whether the client can read an answer that gzip has compressed.
func takesGzip(r *http.Request) bool {
	for _, list := range r.Header.Values("Accept-Encoding") {
		for entry := range strings.SplitSeq(list, ",") {
			name, parameter, _ := strings.Cut(entry, ";")
			weight, weighted := strings.CutPrefix(strings.TrimSpace(parameter), "q=")
			if strings.TrimSpace(name) == "gzip" && (!weighted || strings.Trim(weight, "0.") != "") {
				return true
			}
		}
	}
	return false
}
