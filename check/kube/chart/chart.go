// Package chart installs ration's Helm chart into a cluster, as far as the API server is concerned.
package chart

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/retry"
)

// The release's names, and those that come of them.
const (
	Release        = "ration"
	Namespace      = "ration-system"
	ServiceAccount = Release + "-kubelet-plugin"
)

// NodeName is the extra information of a user by which the API server says on which node a pod's token is used.
const NodeName = "authentication.kubernetes.io/node-name"

// As returns a configuration for a client with the rights of the plugin on a node.
func As(config *rest.Config, node string) *rest.Config {
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + Namespace + ":" + ServiceAccount,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + Namespace, "system:authenticated"},
		Extra:  map[string][]string{NodeName: {node}}}
	return config
}

// Render returns the objects of the chart in a folder, with values.
func Render(folder string, values map[string]any) ([]*unstructured.Unstructured, error) {
	chart, err := loader.Load(folder)
	if err != nil {
		return nil, fmt.Errorf("loading the chart: %w", err)
	}
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: Release, Namespace: Namespace}, nil)
	if err != nil {
		return nil, fmt.Errorf("rendering the chart: %w", err)
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, fmt.Errorf("rendering the chart: %w", err)
	}
	var objects []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		some, err := Decode(strings.NewReader(files[name]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		objects = append(objects, some...)
	}
	return objects, nil
}

// ReadFile returns the objects of a manifest.
func ReadFile(path string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Decode(bytes.NewReader(text))
}

// Decode returns the objects of a manifest.
func Decode(from io.Reader) (objects []*unstructured.Unstructured, err error) {
	for r := yaml.NewYAMLReader(bufio.NewReader(from)); ; {
		text, err := r.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &object.Object); err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// Apply creates objects in the order in which they are, or updates those that are there; those that name no namespace in the one
// given. A field that the API server does not know is an error.
func Apply(ctx context.Context, config *rest.Config, namespace string, objects []*unstructured.Unstructured) error {
	known, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	groups, err := restmapper.GetAPIGroupResources(known)
	if err != nil {
		return fmt.Errorf("asking what the API server knows: %w", err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, o := range objects {
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		var to dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == "namespace" {
			in := o.GetNamespace()
			if in == "" {
				in = namespace
			}
			to = client.Resource(mapping.Resource).Namespace(in)
		}
		_, err = to.Create(ctx, o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if apierrors.IsAlreadyExists(err) {
			err = update(ctx, to, o)
		}
		if err != nil {
			return fmt.Errorf("creating %s %s: %w", kind.Kind, o.GetName(), err)
		}
	}
	return nil
}

func update(ctx context.Context, to dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		there, err := to.Get(ctx, o.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		o.SetResourceVersion(there.GetResourceVersion())
		_, err = to.Update(ctx, o, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
		return err
	})
}
