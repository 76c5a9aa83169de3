use super::file::parse_hash;
use super::*;

fn read(text: &str) -> Result<Vec<Arc<Client>>, String> {
    parse_clients(text.as_bytes(), &mut Usages::default(), Instant::now())
}

fn entry(name: &str, key: &str, more: &str) -> String {
    format!("[[key]]\nname = \"{name}\"\nhash = \"{}\"\n{more}\n", key_hash(key))
}

#[test]
fn the_hash_equals_the_output_of_sha256sum() {
    // printf %s abc | sha256sum
    assert_eq!(key_hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(parse_hash(&key_hash("abc")).map(|hash| hash[0]), Some(0xba));
    assert_eq!(parse_hash(&format!("sha256:{}", key_hash("abc"))), parse_hash(&key_hash("abc")));
}

#[test]
fn errors_name_the_field_and_never_quote_the_file() {
    let secret = "sk-secret-where-a-hash-should-be";
    let two = entry("a", "k", "") + &entry("b", "k", "");
    for (text, said) in [
        ("".to_owned(), "must have at least one [[key]]"),
        (format!("[[key]]\nname = \"a\"\nhash = \"{secret}\""), "key[0].hash must be the SHA-256"),
        (format!("[[key]]\nname = \"a\"\nhash = {secret}"), "line 3: "),
        (format!("[[key]]\nname = \"a\"\nkey = \"{secret}\""), "unknown field `key`"),
        (entry("", "k", ""), "key[0].name must have 1 to 64"),
        (entry("a b", "k", ""), "key[0].name must have 1 to 64"),
        (entry("a", "k", "") + &entry("a", "l", ""), "key[1].name must be unique: another key is named 'a'"),
        (two, "key[1].hash must be unique"),
        (entry("a", "k", "max_in_flight = 0"), "key[0].max_in_flight must be at least 1"),
        (entry("a", "k", "tokens_per_minute = -1"), "line 4"),
        (entry("a", "k", "speed = 1"), "unknown field `speed`"),
    ] {
        let error = read(&text).map(drop).expect_err(&text);
        assert!(error.contains(said) && !error.contains(secret), "{error}");
    }
    assert_eq!(read(&(entry("a", "k", "") + &entry("b", "l", "priority = -3"))).unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn usage_survives_a_reload_of_the_file() {
    let (mut usages, now) = (Usages::default(), Instant::now());
    let caller = |text: &str, usages: &mut _| ApiCaller(parse_clients(text.as_bytes(), usages, now).unwrap().remove(0));
    let first = caller(&entry("a", "old", "requests_per_minute = 2"), &mut usages);
    first.begin().await.unwrap();
    let open = first.enter().await.unwrap();
    // The key is replaced, but usage belongs to the name.
    let second = caller(&entry("a", "new", "requests_per_minute = 2\nmax_in_flight = 1"), &mut usages);
    second.begin().await.unwrap();
    let error = second.begin().await.expect_err("two were allowed");
    assert_eq!((error.code, error.retry_after), (Some("rate_limit_exceeded"), Some(Duration::from_secs(30))));
    assert!(error.message.contains("'a'") && error.message.contains("2 requests per minute"), "{error}");
    assert!(second.enter().await.is_err_and(|error| error.kind == ErrorKind::Full));
    drop(open);
    drop(second.enter().await.unwrap());
    assert_eq!(second.0.usage.in_flight(), 0);
    // A name that was removed starts again from zero.
    caller(&entry("b", "k", ""), &mut usages);
    caller(&entry("a", "new", "requests_per_minute = 2"), &mut usages).begin().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn charged_tokens_delay_the_next_request() {
    let now = Instant::now();
    let caller = ApiCaller(read(&entry("a", "k", "tokens_per_minute = 600")).unwrap().remove(0));
    caller.begin().await.unwrap();
    caller.charge(900, now);
    let error = caller.begin().await.expect_err("in debt");
    assert_eq!(error.retry_after.map(|wait| wait.as_secs_f64().round()), Some(30.0));
    assert_eq!(caller.rates(now).map(|rate| rate.map(|rate| rate.remaining)), [None, Some(0)]);
    tokio::time::advance(Duration::from_secs(31)).await;
    caller.begin().await.unwrap();
}

#[test]
fn a_request_may_be_less_urgent_than_its_key_but_not_more() {
    let caller = ApiCaller(read(&entry("a", "k", "priority = 5")).unwrap().remove(0));
    assert_eq!([None, Some(9), Some(-9)].map(|asked| caller.priority(asked)), [5, 9, 5]);
}

#[tokio::test(start_paused = true)]
async fn of_requests_that_each_need_all_slots_one_gets_them() {
    let caller = ApiCaller(read(&entry("a", "k", "max_in_flight = 2")).unwrap().remove(0));
    let mut both = [caller.enter().await.unwrap(), caller.enter().await.unwrap()];
    let mut got = 0;
    for permit in &mut both {
        got += usize::from(permit.extend_to(2).await.is_ok());
    }
    assert_eq!(got, 1);
    drop(both);
    assert_eq!(caller.0.usage.in_flight(), 0);
}
