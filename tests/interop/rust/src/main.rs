//! Sends messages and gets them back: `interop NAMESRV TOPIC GROUP COUNT SECONDS`.
//!
//! Prints `sent STATUS` for each message, `got BODY` for each that the push consumer gets,
//! and `ended` once it has all of them.

#![recursion_limit = "512"]

use std::collections::HashSet;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rocketmq_client_rust::{
    ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus, DefaultMQProducer, DefaultMQPushConsumer, MQPushConsumer,
    MessageListenerConcurrently,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};

type Bodies = Arc<Mutex<HashSet<Vec<u8>>>>;

struct Collect(Bodies);

impl MessageListenerConcurrently for Collect {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        for message in messages {
            let body = message.body().unwrap_or_default().to_vec();
            println!("got {}", String::from_utf8_lossy(&body));
            self.0.lock().unwrap().insert(body);
        }
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [namesrv, topic, group, count, seconds] = given.as_slice() else {
        return Err("wanted: NAMESRV TOPIC GROUP COUNT SECONDS".into());
    };
    let (count, seconds): (usize, u64) = (count.parse()?, seconds.parse()?);
    let owner = RuntimeOwner::plan(RuntimeConfig::default())?.build()?;
    let telemetry = rocketmq_observability::install_global(&Default::default())?;
    let runtime = ClientRuntime::try_new(
        owner.root_context().component("client"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )?;
    let bodies = Bodies::default();

    let mut producer = DefaultMQProducer::builder(runtime.clone())
        .producer_group(format!("{group}-producer"))
        .name_server_addr(namesrv.clone())
        .build();
    producer.start().await?;
    for number in 0..count {
        let message = Message::builder()
            .topic(topic.clone())
            .tags("rust")
            .body_slice(number.to_string().as_bytes())
            .build_unchecked();
        let sent = producer.send_with_timeout(message, 10_000).await?;
        let sent = sent.ok_or("a send without a result")?;
        println!("sent {:?}", sent.send_status);
    }
    let mut consumer = DefaultMQPushConsumer::builder(runtime.clone())
        .consumer_group(group.clone())
        .name_server_addr(namesrv.clone())
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .build();
    consumer.subscribe(topic.as_str(), "rust").await?;
    consumer.register_message_listener_concurrently(Collect(bodies.clone()));
    consumer.start().await?;
    let all = tokio::time::timeout(Duration::from_secs(seconds), async {
        while bodies.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    all.await
        .map_err(|_| format!("got {} of {count}", bodies.lock().unwrap().len()))?;
    println!("ended");
    Box::pin(consumer.shutdown()).await;
    producer.shutdown().await;
    Ok(())
}
