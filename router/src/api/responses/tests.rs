mod builder;
mod conversations;
mod custom_input;
mod errors;
mod tools;
