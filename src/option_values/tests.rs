use super::*;

#[test]
fn only_reachable_hosts_are_accepted() {
    for good in ["127.0.0.1:2379", "etcd-0.etcd.svc:2379", "http://h:1", "https://h:1/", "[::1]:2379"] {
        assert_eq!(etcd(good).as_deref(), Ok(good));
    }
    for bad in ["", "h", "https://h", "ftp://h:1", "h:1/path", "h:x", "h:99999", "a b:1", "http://:1x", "h:1?q"] {
        assert!(etcd(bad).is_err(), "{bad}");
    }
    for good in ["http://127.0.0.1:4317", "https://collector", "http://[::1]:4317"] {
        assert_eq!(collector(good).as_deref(), Ok(good));
    }
    for bad in ["", "foo", "127.0.0.1:4317", "grpc://h:1", "http://", "http:///x"] {
        assert!(collector(bad).is_err(), "{bad}");
    }
    for good in ["10.0.0.5", "::1", "worker-0.workers", "w_1"] {
        assert_eq!(host(good).as_deref(), Ok(good));
    }
    for bad in ["", "http://x", "x:1", "http://x:1", "[::1]", "0.0.0.0", "::", "a b", "-x"] {
        assert!(host(bad).is_err(), "{bad}");
    }
    for bad in ["1", "0.5", "inf", "nan", "x", ""] {
        assert!(factor(bad).is_err(), "{bad}");
    }
    assert_eq!(factor("1.1"), Ok(1.1));
    for bad in ["0", "-1", "1e300", "1e-9", "nan"] {
        assert!(deadline(bad).is_err(), "{bad}");
    }
}
