//! The official Rust client of RocketMQ 5, unmodified, driven by `tests/interop/grpc5/driver.py`,
//! which says what the lines mean.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::oneshot;

type Table<K, V> = Mutex<HashMap<K, V>>;

struct Consumer {
    client: SimpleConsumer,
    topic: String,
    filter: FilterExpression,
}

/// What lines name.
#[derive(Default)]
struct Named {
    producers: Table<String, Arc<Producer>>,
    consumers: Table<String, Arc<Consumer>>,
    received: Table<u64, Arc<MessageView>>,
    /// How an open transaction is to end.
    transactions: Table<String, oneshot::Sender<String>>,
    ended: Table<String, oneshot::Receiver<Result<(), ClientError>>>,
    numbers: AtomicU64,
}

fn tell(line: Value) {
    writeln!(io::stdout().lock(), "{line}").unwrap();
}

fn text(said: &Value, name: &str) -> String {
    said[name].as_str().unwrap_or_default().to_string()
}

fn options(said: &Value) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(text(said, "endpoint"));
    // A machine that is busy with other tests may answer late.
    option.set_timeout(Duration::from_secs(10));
    if !text(said, "key").is_empty() {
        option.set_access_key(text(said, "key"));
        option.set_secret_key(text(said, "secret"));
    }
    option
}

fn body(message: &MessageView) -> String {
    String::from_utf8_lossy(message.body()).into_owned()
}

impl Named {
    async fn producer(&self, said: &Value) -> Result<Value, ClientError> {
        let mut option = ProducerOption::default();
        let topics = said["topics"].as_array().unwrap();
        option.set_topics(topics.iter().map(|each| each.as_str().unwrap()).collect());
        let name = text(said, "name");
        let asked = name.clone();
        let check = move |_id: String, message: MessageView| {
            let body = body(&message);
            tell(json!({"event": "checked", "name": asked, "body": body}));
            match body.as_str() {
                "commit" => TransactionResolution::COMMIT,
                "rollback" => TransactionResolution::ROLLBACK,
                _ => TransactionResolution::UNKNOWN,
            }
        };
        let mut made = Producer::new_transaction_producer(option, options(said), Box::new(check))?;
        made.start().await?;
        self.producers.lock().unwrap().insert(name, Arc::new(made));
        Ok(Value::Null)
    }

    async fn send(&self, said: &Value) -> Result<Value, ClientError> {
        let sender = self.producers.lock().unwrap()[&text(said, "name")].clone();
        let properties = said["properties"].as_object().unwrap();
        let keys = said["keys"].as_array().unwrap();
        let mut built = MessageBuilder::builder()
            .set_topic(text(said, "topic"))
            .set_body(text(said, "body").into_bytes())
            .set_keys(keys.iter().map(|key| key.as_str().unwrap()).collect())
            .set_properties(
                properties
                    .iter()
                    .map(|(key, value)| (key, value.as_str().unwrap()))
                    .collect(),
            );
        if !text(said, "tag").is_empty() {
            built = built.set_tag(text(said, "tag"));
        }
        if !text(said, "group").is_empty() {
            built = built.set_message_group(text(said, "group"));
        }
        if said["at"] != 0 {
            built = built.set_delivery_timestamp(said["at"].as_i64().unwrap() / 1000);
        }
        if said["transaction"] != true {
            let receipt = sender.send(built.build()?).await?;
            return Ok(json!({"id": receipt.message_id(), "recall": ""}));
        }
        let half = built.enable_transaction().build()?;
        let transaction = sender.send_transaction_message(half).await?;
        let id = transaction.message_id().to_string();
        let (how, told) = oneshot::channel::<String>();
        let (done, ended) = oneshot::channel();
        self.transactions
            .lock()
            .unwrap()
            .insert(text(said, "body"), how);
        self.ended.lock().unwrap().insert(text(said, "body"), ended);
        tokio::spawn(async move {
            let outcome = match told.await.as_deref() {
                Ok("commit") => transaction.commit().await,
                Ok(_) => transaction.rollback().await,
                Err(_) => Ok(()),
            };
            let _ = done.send(outcome);
        });
        Ok(json!({"id": id, "recall": ""}))
    }

    /// Several messages in one call.
    async fn sends(&self, said: &Value) -> Result<Value, ClientError> {
        let sender = self.producers.lock().unwrap()[&text(said, "name")].clone();
        let built: Result<Vec<_>, ClientError> = said["bodies"]
            .as_array()
            .unwrap()
            .iter()
            .map(|body| {
                MessageBuilder::builder()
                    .set_topic(text(said, "topic"))
                    .set_body(body.as_str().unwrap().as_bytes().to_vec())
                    .build()
            })
            .collect();
        let receipts = sender.batch_send(built?).await?;
        Ok(receipts
            .iter()
            .map(|each| json!(each.message_id()))
            .collect())
    }

    async fn end(&self, said: &Value) -> Result<Value, ClientError> {
        let body = text(said, "body");
        let how = self.transactions.lock().unwrap().remove(&body).unwrap();
        let ended = self.ended.lock().unwrap().remove(&body).unwrap();
        how.send(text(said, "how")).unwrap();
        ended.await.unwrap()?;
        Ok(Value::Null)
    }

    async fn simple(&self, said: &Value) -> Result<Value, ClientError> {
        let mut option = SimpleConsumerOption::default();
        let topic = text(said, "topic");
        option.set_consumer_group(text(said, "group"));
        option.set_topics(vec![topic.clone()]);
        let mut client = SimpleConsumer::new(option, options(said))?;
        client.start().await?;
        let kind = if said["sql"] == true {
            FilterType::Sql
        } else {
            FilterType::Tag
        };
        let filter = FilterExpression::new(kind, text(said, "expression"));
        let made = Consumer {
            client,
            topic,
            filter,
        };
        self.consumers
            .lock()
            .unwrap()
            .insert(text(said, "name"), Arc::new(made));
        Ok(Value::Null)
    }

    fn consumer(&self, said: &Value) -> Arc<Consumer> {
        self.consumers.lock().unwrap()[&text(said, "name")].clone()
    }

    async fn receive(&self, said: &Value) -> Result<Value, ClientError> {
        let consumer = self.consumer(said);
        let count = said["count"].as_i64().unwrap() as i32;
        let invisible = Duration::from_secs(said["invisible"].as_u64().unwrap());
        let messages = consumer
            .client
            .receive_with(&consumer.topic, &consumer.filter, count, invisible)
            .await?;
        Ok(messages.into_iter().map(|each| self.facts(each)).collect())
    }

    fn facts(&self, message: MessageView) -> Value {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut keys = message.keys().to_vec();
        keys.sort();
        let facts = json!({
            "n": number,
            "id": message.message_id(),
            "topic": message.topic(),
            "body": body(&message),
            "tag": message.tag().unwrap_or_default(),
            "keys": keys,
            "properties": message.properties(),
            "group": message.message_group().unwrap_or_default(),
            "at": message.delivery_timestamp().unwrap_or_default() * 1000,
            "attempt": message.delivery_attempt(),
        });
        self.received
            .lock()
            .unwrap()
            .insert(number, Arc::new(message));
        facts
    }

    async fn ack(&self, said: &Value) -> Result<Value, ClientError> {
        let number = said["n"].as_u64().unwrap();
        let message = self.received.lock().unwrap()[&number].clone();
        self.consumer(said).client.ack(message.as_ref()).await?;
        Ok(Value::Null)
    }

    async fn close(&self, said: &Value) -> Result<Value, ClientError> {
        let name = text(said, "name");
        let producer = self.producers.lock().unwrap().remove(&name);
        if let Some(producer) = producer.and_then(Arc::into_inner) {
            producer.shutdown().await?;
        }
        let consumer = self.consumers.lock().unwrap().remove(&name);
        if let Some(consumer) = consumer.and_then(Arc::into_inner) {
            consumer.client.shutdown().await?;
        }
        Ok(Value::Null)
    }

    async fn answer(&self, said: Value) {
        let done = match text(&said, "do").as_str() {
            _ if said["tls"] == true => Err("the client has no TLS".to_string()),
            "producer" => told(self.producer(&said).await),
            "send" => told(self.send(&said).await),
            "sends" => told(self.sends(&said).await),
            "end" => told(self.end(&said).await),
            "simple" => told(self.simple(&said).await),
            "receive" => told(self.receive(&said).await),
            "ack" => told(self.ack(&said).await),
            "close" => told(self.close(&said).await),
            other => Err(format!("the client has no {other}")),
        };
        tell(match done {
            Ok(value) => json!({"id": said["id"], "value": value}),
            Err(error) => json!({"id": said["id"], "error": error}),
        });
    }
}

fn told(done: Result<Value, ClientError>) -> Result<Value, String> {
    done.map_err(|error| error.to_string())
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let named = Arc::new(Named::default());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (named, said) = (named.clone(), serde_json::from_str(&line)?);
        tokio::spawn(async move { named.answer(said).await });
    }
    Ok(())
}
