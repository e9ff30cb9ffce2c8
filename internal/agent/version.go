package agent

import "net/http"

// The API is versioned by its paths: /v1/... stays as it is, but for fields that are added, so that
// commands and agents of different versions understand each other. Where an agent does not know a
// path, it is of an earlier version: commands then do without it, as where there is none.
//
// headerVersion tells in each answer of which version of ration the agent is, for ration doctor: after
// an upgrade an agent goes on as it was until it is started again.
const headerVersion = "Ration-Version"

// withVersion adds the version to each answer.
func withVersion(version string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(headerVersion, version)
		next.ServeHTTP(w, r)
	})
}
