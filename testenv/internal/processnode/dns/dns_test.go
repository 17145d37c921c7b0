package dns

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

func endpoint(address, hostname string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{address}, Hostname: &hostname, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
}

func known(t *testing.T) Records {
	t.Helper()
	services := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	sliced := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, name := range []string{"head", "idle"} {
		if err := services.Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ray", Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sliced.Add(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ray", Name: "head-1", Labels: map[string]string{discoveryv1.LabelServiceName: "head"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			endpoint("198.18.128.1", "a", true), endpoint("198.18.128.2", "b", false), endpoint("198.18.128.1", "a", true),
		},
	}); err != nil {
		t.Fatal(err)
	}
	return Records{corelisters.NewServiceLister(services), discoverylisters.NewEndpointSliceLister(sliced)}
}

func TestNamesResolveToReadyEndpoints(t *testing.T) {
	records := known(t)
	for name, want := range map[string][]string{
		"head.ray.svc.cluster.local.":   {"198.18.128.1"},
		"HEAD.ray.svc.":                 {"198.18.128.1"},
		"a.head.ray.svc.cluster.local.": {"198.18.128.1"},
		"b.head.ray.svc.cluster.local.": nil,
		"idle.ray.svc.cluster.local.":   nil,
	} {
		if got, found, err := records.Lookup(name); err != nil || !found || !slices.Equal(got, want) {
			t.Errorf("%s is %v (%t, %v), not %v", name, got, found, err, want)
		}
	}
	for _, name := range []string{"other.ray.svc.cluster.local.", "head.other.svc.", "c.head.ray.svc.", "head.", "example.com.", "."} {
		if got, found, err := records.Lookup(name); err != nil || found {
			t.Errorf("%s is %v (%v), though nothing has that name", name, got, err)
		}
	}
}

func ask(t *testing.T, kind dnsmessage.Type, lookup Lookup, most int) dnsmessage.Message {
	t.Helper()
	question := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("a."), Type: kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := question.Pack()
	if err != nil {
		t.Fatal(err)
	}
	packed, err = answer(packed, lookup, most)
	if err != nil {
		t.Fatal(err)
	}
	var reply dnsmessage.Message
	if err := reply.Unpack(packed); err != nil {
		t.Fatal(err)
	}
	if reply.ID != 7 || !reply.Response {
		t.Errorf("not a reply to the question: %+v", reply.Header)
	}
	return reply
}

func fixed(count int, known bool, err error) Lookup {
	return func(string) ([]string, bool, error) {
		var addresses []string
		for i := range count {
			addresses = append(addresses, fmt.Sprintf("198.18.128.%d", i+1))
		}
		return addresses, known, err
	}
}

func TestAnswersSayWhatIsKnown(t *testing.T) {
	if reply := ask(t, dnsmessage.TypeA, fixed(2, true, nil), mostDatagram); len(reply.Answers) != 2 || reply.RCode != dnsmessage.RCodeSuccess {
		t.Errorf("two addresses: %+v", reply)
	}
	if reply := ask(t, dnsmessage.TypeAAAA, fixed(2, true, nil), mostDatagram); len(reply.Answers) != 0 || reply.RCode != dnsmessage.RCodeSuccess {
		t.Errorf("no address of IPv6: %+v", reply)
	}
	if reply := ask(t, dnsmessage.TypeA, fixed(0, false, nil), mostDatagram); reply.RCode != dnsmessage.RCodeNameError {
		t.Errorf("an unknown name: %+v", reply)
	}
	if reply := ask(t, dnsmessage.TypeA, fixed(0, false, fmt.Errorf("lost")), mostDatagram); reply.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("an error: %+v", reply)
	}
	if reply := ask(t, dnsmessage.TypeA, fixed(200, true, nil), mostDatagram); !reply.Truncated || len(reply.Answers) != 0 {
		t.Errorf("too many addresses for a datagram: %+v", reply.Header)
	}
}

func TestWhatIsNoQuestionGetsNoAnswer(t *testing.T) {
	for _, message := range [][]byte{nil, {1, 2, 3}, make([]byte, 12)} {
		if reply, err := answer(message, fixed(1, true, nil), mostDatagram); err == nil {
			t.Errorf("%v was answered with %v", message, reply)
		}
	}
}
