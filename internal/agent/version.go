package agent

import "net/http"

// The API is versioned by its paths. Fields are only added under /v1/, so commands and agents of
// different versions understand each other. If an agent does not know a path, a command works
// without the agent.
//
// headerVersion is the header with the agent's version, for ration doctor: after an upgrade, the
// old agent keeps running until it is restarted.
const headerVersion = "Ration-Version"

// withVersion adds the version to each answer.
func withVersion(version string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(headerVersion, version)
		next.ServeHTTP(w, r)
	})
}
